"""The command line: `main` has the program, and the modules beside it the commands. Plugins add theirs."""
