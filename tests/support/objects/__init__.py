"""Object stores that fail, bill, wait or speak S3."""
