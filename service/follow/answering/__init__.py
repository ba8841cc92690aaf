"""The follow process as one more broker of the cluster: it answers for what the followed brokers no longer have."""
