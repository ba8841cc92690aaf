"""The S3 backend of the object store contract; only ``client`` knows the SDK."""
