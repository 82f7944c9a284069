"""What `hoptell doctor` looks at, one small check after the other; nothing is changed."""
