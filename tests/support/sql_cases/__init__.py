"""Values and expressions that are compared with Spark."""
