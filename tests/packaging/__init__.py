"""What users install. Run by `make package`, against the wheel and the sdist that it built."""
