"""The `mqbridge` command: one file per subcommand. Clusters are reached only through `mqbridge.adapter`."""
