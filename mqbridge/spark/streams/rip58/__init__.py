"""The words of RIP-58 over DataFrames; names of methods are its own, in camel case."""
