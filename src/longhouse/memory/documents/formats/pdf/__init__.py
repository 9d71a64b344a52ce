"""PDF: one file for each thing that is seen on a page. `reader.read` reads a document."""
