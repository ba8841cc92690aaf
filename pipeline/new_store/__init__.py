"""Archives of stores that never were hot: built by executors, made visible by one commit of the driver."""
