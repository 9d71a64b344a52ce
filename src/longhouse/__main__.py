"""`python -m longhouse`: the command line."""

from longhouse.cli.main import cli

if __name__ == "__main__":
    cli()
