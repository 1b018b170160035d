"""The benchmark: this library and its peers on the same records, with the promises checked. See README.md."""
