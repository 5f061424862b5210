"""`python -m omni_cli` is `omni`."""

from omni_cli.app import main

if __name__ == "__main__":
    main()
