"""``python -m fedspan``: the command line."""

from fedspan.cli import main

if __name__ == "__main__":
    main()
