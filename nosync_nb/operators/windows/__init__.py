"""Window functions: values of rows that depend on the rows around them in an order.

window.py is the kernel. calls.py describes functions. intervals.py and reading.py find and read the
affected rows. prefixes.py and running.py sum up the rows before and after them, and heads.py reads
the first rows of groups. lines.py and frames.py compute the values, and ranges.py the bounds of
RANGE frames.
"""
