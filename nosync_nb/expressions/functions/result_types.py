"""Functions with one result type for all arguments. Describing a call of one starts no Spark.

These are functions that only Spark computes, or that are computed in process for some arguments
only. A test asks Spark for the type of each.
"""

from __future__ import annotations

_NAMES = {
    "string": """
        base64 bin btrim char chr concat_ws conv current_catalog current_database
        current_schema current_timezone current_user date_format dayname
        format_number format_string from_unixtime get_json_object hex initcap lcase lower ltrim
        make_valid_utf8 mask md5 monthname parse_url printf quote regexp_extract regexp_replace
        regexp_substr repeat replace right rtrim schema_of_csv schema_of_json sha sha1 sha2 soundex
        space split_part string substring_index to_char to_csv to_json to_varchar translate trim
        try_parse_url try_url_decode try_validate_utf8 ucase upper url_decode url_encode user
        validate_utf8 version xpath_string
    """,
    "boolean": """
        array_contains arrays_overlap boolean contains endswith equal_null ilike is_valid_utf8
        isnan isnotnull isnull like luhn_check map_contains_key regexp regexp_like rlike
        startswith xpath_boolean
    """,
    "smallint": "xpath_short",
    "int": """
        ascii bit_count bit_length cardinality char_length character_length day
        dayofmonth dayofweek dayofyear find_in_set hash hour instr json_array_length len length
        levenshtein locate minute month octet_length position quarter regexp_count regexp_instr
        second size unix_date weekday weekofyear xpath_int year array_size
    """,
    "bigint": """
        array_position bigint crc32 factorial to_unix_timestamp unix_micros
        unix_millis unix_seconds unix_timestamp width_bucket xpath_long xxhash64
    """,
    "float": "float xpath_float",
    "double": """
        acos acosh asin asinh atan atan2 atanh cbrt cos cosh cot csc degrees double e exp expm1
        hypot ln log log10 log1p log2 months_between pi pow power radians rint sec sign signum
        sin sinh sqrt tan tanh xpath_double xpath_number
    """,
    "date": """
        add_months date date_from_unix_date date_sub last_day make_date next_day to_date
        trunc try_to_date
    """,
    "timestamp": """
        date_trunc from_utc_timestamp make_timestamp make_timestamp_ltz timestamp timestamp_micros
        timestamp_millis timestamp_seconds to_timestamp to_timestamp_ltz to_utc_timestamp
        try_make_timestamp try_make_timestamp_ltz try_to_timestamp
    """,
    "timestamp_ntz": """
        convert_timezone make_timestamp_ntz to_timestamp_ntz try_make_timestamp_ntz
    """,
    "binary": "aes_decrypt aes_encrypt binary encode to_binary try_to_binary unbase64 unhex",
    "array<string>": "json_object_keys regexp_extract_all split xpath",
    "array<array<string>>": "sentences",
    "map<string,string>": "str_to_map",
}

RESULTS = {name: type_ for type_, names in _NAMES.items() for name in names.split()}
