"""The functions that users give: captured, identified by what they do, signed, brought back."""
