"""The API of RIP-58 on top of DataFrames. Its methods keep the camel case names of RIP-58."""
