"""Build the documentation site: reference pages from the code, pictures, links."""
