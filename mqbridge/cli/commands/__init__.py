"""The subcommands of `mqbridge`, one file each."""
