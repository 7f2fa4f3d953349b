"""``python -m mempo SUBCOMMAND`` is ``mempo SUBCOMMAND``."""

from mempo.command.main import main

if __name__ == "__main__":
    main()
