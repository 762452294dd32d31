"""Names of Spark's functions that depend on more than the values of one row.

Some are forbidden in a row expression; others are marked because two evaluations differ.
"""

from __future__ import annotations

_AGGREGATES = """
any any_value approx_count_distinct approx_percentile approx_top_k array_agg avg bit_and bit_or
bit_xor bitmap_and_agg bitmap_construct_agg bitmap_or_agg bool_and bool_or collect_list collect_set
corr count count_distinct count_if count_min_sketch covar_pop covar_samp every first first_value
grouping grouping_id histogram_numeric hll_sketch_agg hll_union_agg kurtosis last last_value listagg
max max_by mean median min min_by mode percentile percentile_approx percentile_cont percentile_disc
product regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy
schema_of_json_agg skewness some std stddev stddev_pop stddev_samp string_agg sum sum_distinct
try_avg try_sum var_pop var_samp variance
"""
_WINDOWS = "cume_dist dense_rank lag lead nth_value ntile percent_rank rank row_number"
_EXPLODING = "explode explode_outer posexplode posexplode_outer inline inline_outer"
_GENERATORS = f"{_EXPLODING} stack json_tuple variant_explode variant_explode_outer"
_WITHOUT_PARENTHESES = """
current_date current_timestamp current_time localtimestamp current_user user session_user
"""
_UNSTABLE = f"""
{_WITHOUT_PARENTHESES} rand randn random randstr uniform uuid shuffle monotonically_increasing_id
spark_partition_id input_file_name input_file_block_start input_file_block_length now curdate
current_timezone current_catalog current_database current_schema version reflect java_method
try_reflect
"""
_UNITS = "year quarter month week day dayofyear hour minute second millisecond microsecond"
_TAKES_UNIT = "dateadd date_add datediff date_diff timestampadd timestampdiff timediff"

AGGREGATES = frozenset(_AGGREGATES.split())
WINDOWS = frozenset(_WINDOWS.split())
GENERATORS = frozenset(_GENERATORS.split())
EXPLODING = frozenset(_EXPLODING.split())
"""Generators that make rows of an array or a map."""

UNSTABLE = frozenset(_UNSTABLE.split())
"""Functions whose value depends on more than their arguments."""

WITHOUT_PARENTHESES = frozenset(_WITHOUT_PARENTHESES.split())
UNITS = frozenset(_UNITS.split())
TAKES_UNIT = frozenset(_TAKES_UNIT.split())
