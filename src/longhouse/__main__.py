"""`longhouse` and `python -m longhouse`: the command line."""

import gc
import importlib


def main() -> None:
    # What is imported stays: looking for garbage in it takes 15 ms. It is looked for once the command is loaded.
    gc.disable()
    importlib.import_module("longhouse.cli.main").cli()


if __name__ == "__main__":
    main()
