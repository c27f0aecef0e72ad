"""The site: the pages of this repository as a book with a search, made by mdBook."""
