"""SQL queries as definitions: parsing, name resolution, unnesting and translation."""
