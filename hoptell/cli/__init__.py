"""The command line: options in, one library call, words out (SPEC.md, 8)."""
