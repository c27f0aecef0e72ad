"""The tests that other packages have for themselves, on the storage of swlimit for `limits`."""
