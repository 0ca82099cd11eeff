"""The demo material: packages from the package index, and The World Factbook as documents and questions."""
