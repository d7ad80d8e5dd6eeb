"""Spark session of a maintenance run: no log output, no web UI, temporary files in the run's scratch directory."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import signal
import sys
import threading
import zipfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

from adapter.maintenance import processes, workspace
from adapter.store import disk
from protocol.errors import MailError, Reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CODE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_PACKAGES = ("adapter", "protocol")
_DESCRIPTORS = "/proc/self/fd"
_LOG4J_PROPERTIES = """rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = spark: %m%n
"""


def check_java() -> None:
    """Fail with one clear line if Java is not installed."""
    home = os.environ.get("JAVA_HOME")
    directories = [os.path.join(home, "bin")] if home else os.environ.get("PATH", "").split(os.pathsep)
    if not any(os.access(os.path.join(directory, "java"), os.X_OK) for directory in directories):
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "no java on the PATH"
        raise MailError(Reason.UNKNOWN, f"check and repair need Java 17 or later: {where}; install openjdk-17-jre")


def start_session(master: str, scratch: str, *, log_level: str = "off") -> SparkSession:
    """Start a session with its temporary files below ``scratch``, which the caller removes."""
    check_java()
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # Py4J raises every error that it logs
    logging.getLogger().addFilter(_is_not_py4j)
    log_properties = os.path.join(scratch, "log4j2.properties")
    workspace.write_file(log_properties, _LOG4J_PROPERTIES.format(level=log_level).encode())
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1" if master.startswith("local") else "")
    if not os.environ["SPARK_LOCAL_IP"]:
        del os.environ["SPARK_LOCAL_IP"]
    path = os.pathsep.join(filter(None, (_CODE, os.environ.get("PYTHONPATH"))))
    java = (
        f"-Dlog4j2.configurationFile=file:{log_properties} -Djava.io.tmpdir={scratch} -XX:+UseSerialGC -XX:-UsePerfData"
        " -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m --add-modules=jdk.incubator.vector"
    )
    options = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": log_level.upper(),
        "spark.local.dir": scratch,
        "spark.sql.warehouse.dir": os.path.join(scratch, "warehouse"),
        "spark.driver.memory": os.environ.get("MARKPOST_SPARK_MEMORY", "1g"),
        "spark.driver.extraJavaOptions": java,
        "spark.executor.extraJavaOptions": java,
        "spark.scheduler.mode": "FAIR",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",  # compiling costs more than the joins of most stores
        "spark.sql.codegen.cache.maxEntries": "1000",  # an inspection needs more than the default of 100
        "spark.sql.files.openCostInBytes": "0",
        "spark.sql.files.minPartitionNum": "1",
        "spark.sql.files.maxPartitionBytes": "16m",
        "spark.sql.parquet.compression.codec": "uncompressed",
        "spark.executorEnv.PYTHONPATH": path,
        "spark.executorEnv.PYTHONHASHSEED": "0",
    }
    if master.startswith("local") and os.path.isdir(_DESCRIPTORS):
        options["spark.python.unix.domain.socket.enabled"] = "true"  # TCP delays every exchange with a worker
        options["spark.python.unix.domain.socket.dir"] = _short_path(scratch)
    conf = SparkConf().setMaster(master).setAppName("markpost").setAll([*options.items()])
    variables = {"PYTHONPATH": path}  # local masters: workers are children of this process
    if master.startswith("local-cluster"):
        variables["SPARK_HOME"] = _make_spark_home(scratch)
    with _killing_children_on_interrupt():
        with _environment(variables), _silencing_stderr():
            try:
                with _preserving_sigint_handler():
                    SparkContext.getOrCreate(conf)
                session = SparkSession.builder.getOrCreate()
            except Exception as error:
                raise MailError(Reason.UNKNOWN, _startup_error(master, error)) from error
        if not master.startswith("local"):
            session.sparkContext.addPyFile(_code_archive(scratch))
        workers = session.sparkContext.defaultParallelism
        session.sparkContext.parallelize(range(workers), workers).foreach(_import_executor)
    return session


def _is_not_py4j(record: logging.LogRecord) -> bool:
    """Filter out the records that Py4J logs to the root logger on Ctrl-C."""
    return "py4j" not in record.pathname


def is_interrupted(error: BaseException | None) -> bool:
    """True if the error was caused by Ctrl-C (Spark raises secondary errors while shutting down)."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def kill_session(session: SparkSession) -> None:
    """Kill the Java process of a session with a pending call: it would not process a request to stop."""
    gateway = session.sparkContext._gateway
    if gateway is not None:
        java = gateway.proc.pid
        processes.kill({java, *processes.descendants(java)})


def _startup_error(master: str, error: Exception) -> str:
    """Describe a failed start in one line, for example a Java that is too old or an unreachable master."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return f"cannot start Spark on {master}: {first}; check that Java is 17 or later and that the master is reachable"


def _import_executor(_: int) -> None:
    """Import the executor module in a worker, so that a worker without it fails at the start."""
    importlib.import_module("adapter.maintenance.scan.executor")


def _short_path(scratch: str) -> str:
    """A short path to the scratch directory, valid while this process runs: socket paths are limited to 100 bytes."""
    fd = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    return f"/proc/{os.getpid()}/fd/{fd}"


def _make_spark_home(scratch: str) -> str:
    """Create a SPARK_HOME of links to the installed files: a local cluster writes its work files to SPARK_HOME."""
    from pyspark.find_spark_home import _find_spark_home

    installed = os.path.abspath(_find_spark_home())
    workspace.make_directories(scratch, ["spark"])
    home = os.open(f"{scratch}/spark", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in os.listdir(installed):
            if name != "work":
                disk.symlink(home, name, os.path.join(installed, name))
    finally:
        os.close(home)
    return f"{scratch}/spark"


@contextlib.contextmanager
def _killing_children_on_interrupt() -> Iterator[None]:
    """Kill new child processes if the block is interrupted: Spark abandons a Java process that is still starting."""
    before = processes.descendants(os.getpid())
    try:
        yield
    except BaseException as error:
        if is_interrupted(error):
            processes.kill(processes.descendants(os.getpid()) - before)
        raise


@contextlib.contextmanager
def _preserving_sigint_handler() -> Iterator[None]:
    """Restore our SIGINT handler: Spark's handler calls the Java process, possibly in the middle of another call."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _silencing_stderr() -> Iterator[None]:
    """Redirect standard error, which the Java process inherits and writes a banner to. Errors arrive as exceptions."""
    sys.stderr.flush()
    saved, null = os.dup(2), os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)


def _code_archive(scratch: str) -> str:
    """Pack Markpost's own code for executors on other machines."""
    path = os.path.join(scratch, "markpost.zip")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in _PACKAGES:
            for directory, _, files in os.walk(os.path.join(_CODE, package)):
                for name in files:
                    if name.endswith((".py", ".sql")):
                        source = os.path.join(directory, name)
                        archive.write(source, os.path.relpath(source, _CODE))
    workspace.write_file(path, packed.getvalue())
    return path
