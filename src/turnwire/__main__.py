from turnwire.cli.main import main

main()
