from turnwire.cli import main

main()
