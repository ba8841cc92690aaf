"""The groups of settings: a table of the TOML file each. Every description says unit, meaning and cost."""
