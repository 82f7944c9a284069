"""`python -m hoptell`: the same as the `hoptell` command, found without a PATH."""

from hoptell.cli import main

if __name__ == "__main__":
    main()
