"""The types and functions that front ends use in addition to those of `nosync_nb` itself.

A front end, such as the notebook or a view, imports `nosync_nb`, `nosync_nb.errors`, this module
and `nosync_nb.log_folders`, and nothing else of the engine. An import contract checks this.

    from nosync_nb.frontend import Overview

    def rows_text(overview: Overview) -> str:
        return ", ".join(f"{each.name}: {each.rows}" for each in overview.collections)
"""

from nosync_nb.collections.collection import Grouped
from nosync_nb.collections.comparison import (
    Comparison,
    DifferenceCounts,
    RowChange,
    RowChanges,
    RowPair,
)
from nosync_nb.collections.definition import check_name
from nosync_nb.collections.session_protocol import Stopped
from nosync_nb.collections.sql.statements import statement_kinds
from nosync_nb.collections.sql.vocabulary import sql_functions
from nosync_nb.dataflow.runtime.activity import Activity
from nosync_nb.rows import Schema
from nosync_nb.session.durability.replication import ReplicaStatus
from nosync_nb.session.feeds.folder_watch import WatchStatus
from nosync_nb.session.info import Replicas, SessionInfo, SparkControl, TrustReport
from nosync_nb.session.maintenance.disk_usage import DiskUsage
from nosync_nb.session.overview import FailureCost, Overview, OverviewMark, StageOutline
from nosync_nb.session.reads.paging import Cursor
from nosync_nb.session.sql.results import StatementResult
from nosync_nb.session.state.report import StageReport
from nosync_nb.session.state.transactions import PendingInputChanges, Transaction
from nosync_nb.session.writes.idempotency import is_skipped_load
from nosync_nb.spark import is_session as is_spark_session
from nosync_nb.spark import require_session as start_spark
from nosync_nb.spark.spark_session import restart_conf
from nosync_nb.spark.staging.location import checked_url as check_staging_url
from nosync_nb.store.catalog.epoch_index import EpochInfo
from nosync_nb.store.durability import FailureName
from nosync_nb.store.retention_policy import Retention, parse_budget
from nosync_nb.store.threads import SingleThread
from nosync_nb.store.timetravel.branches import BranchInfo
from nosync_nb.store.verification.report import (
    DamagedRange,
    VerificationReport,
    findings_text,
)
from nosync_nb.trace.paging import Profile

__all__ = [
    "Activity",
    "BranchInfo",
    "Comparison",
    "Cursor",
    "DamagedRange",
    "DifferenceCounts",
    "DiskUsage",
    "EpochInfo",
    "FailureCost",
    "FailureName",
    "Grouped",
    "Overview",
    "OverviewMark",
    "PendingInputChanges",
    "Profile",
    "ReplicaStatus",
    "Replicas",
    "Retention",
    "RowChange",
    "RowChanges",
    "RowPair",
    "Schema",
    "SessionInfo",
    "SingleThread",
    "SparkControl",
    "StageOutline",
    "StageReport",
    "StatementResult",
    "Stopped",
    "Transaction",
    "TrustReport",
    "VerificationReport",
    "WatchStatus",
    "check_name",
    "check_staging_url",
    "findings_text",
    "is_skipped_load",
    "is_spark_session",
    "parse_budget",
    "restart_conf",
    "sql_functions",
    "start_spark",
    "statement_kinds",
]
