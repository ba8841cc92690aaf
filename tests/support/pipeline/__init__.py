"""The pipeline's jobs without Spark, and Spark's own processes."""
