"""How the embedded log stores the fields of a message: the field table and the preview."""
