"""Design documents: views, functions, documents as maps see them."""
