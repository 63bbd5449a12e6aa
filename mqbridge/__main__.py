"""`python -m mqbridge` is the `mqbridge` command."""

from mqbridge.cli.main import main

if __name__ == "__main__":
    main()
