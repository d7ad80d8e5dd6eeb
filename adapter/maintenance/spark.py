"""The Spark session of a maintenance run: quiet, without a web page, with its files in the run's scratch directory."""

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
_QUIET = """rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = spark: %m%n
"""


def check_java() -> None:
    """One clear line where there is no Java."""
    home = os.environ.get("JAVA_HOME")
    places = [os.path.join(home, "bin")] if home else os.environ.get("PATH", "").split(os.pathsep)
    if not any(os.access(os.path.join(place, "java"), os.X_OK) for place in places):
        where = f"JAVA_HOME is {home}, where there is none" if home else "there is none on the PATH"
        raise MailError(Reason.UNKNOWN, f"check and repair need Java 17 or later: {where}; install openjdk-17-jre")


def start(master: str, scratch: str, *, log_level: str = "off") -> SparkSession:
    """A session whose temporary files lie below ``scratch``, which its owner removes."""
    check_java()
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # what it logs as an error it also raises
    logging.getLogger().addFilter(_is_news)
    quiet = os.path.join(scratch, "log4j2.properties")
    workspace.write_file(quiet, _QUIET.format(level=log_level).encode())
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1" if master.startswith("local") else "")
    if not os.environ["SPARK_LOCAL_IP"]:
        del os.environ["SPARK_LOCAL_IP"]
    path = os.pathsep.join(filter(None, (_CODE, os.environ.get("PYTHONPATH"))))
    java = (
        f"-Dlog4j2.configurationFile=file:{quiet} -Djava.io.tmpdir={scratch} -XX:+UseSerialGC -XX:-UsePerfData"
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
        "spark.sql.codegen.cache.maxEntries": "1000",  # a look needs more than the 100 it has; the next needs the same
        "spark.sql.files.openCostInBytes": "0",
        "spark.sql.files.minPartitionNum": "1",
        "spark.sql.files.maxPartitionBytes": "16m",
        "spark.sql.parquet.compression.codec": "uncompressed",
        "spark.executorEnv.PYTHONPATH": path,
        "spark.executorEnv.PYTHONHASHSEED": "0",
    }
    if master.startswith("local") and os.path.isdir(_DESCRIPTORS):
        options["spark.python.unix.domain.socket.enabled"] = "true"  # TCP delays every exchange with a worker
        options["spark.python.unix.domain.socket.dir"] = _short(scratch)
    conf = SparkConf().setMaster(master).setAppName("markpost").setAll([*options.items()])
    variables = {"PYTHONPATH": path}  # local masters: workers are children of this process
    if master.startswith("local-cluster"):
        variables["SPARK_HOME"] = _home(scratch)
    with _nothing_left_behind():
        with _environment(variables), _silence():
            try:
                with _own_interrupts():
                    SparkContext.getOrCreate(conf)
                session = SparkSession.builder.getOrCreate()
            except Exception as error:
                raise MailError(Reason.UNKNOWN, _why(master, error)) from error
        if not master.startswith("local"):
            session.sparkContext.addPyFile(_code_archive(scratch))
        workers = session.sparkContext.defaultParallelism
        session.sparkContext.parallelize(range(workers), workers).foreach(_load_program)
    return session


def _is_news(record: logging.LogRecord) -> bool:
    """Not Py4J's own view of Ctrl-C, which it logs as if it were ours."""
    return "py4j" not in record.pathname


def is_interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C is behind it: what Spark does on its way out may fail, and that is what comes then."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def give_up(session: SparkSession) -> None:
    """End a session from which an answer is outstanding: nothing more can be asked there, not even to stop."""
    gateway = session.sparkContext._gateway
    if gateway is not None:
        java = gateway.proc.pid
        processes.kill({java, *processes.descendants(java)})


def _why(master: str, error: Exception) -> str:
    """One line: Java is too old, perhaps, or there is no such master."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return f"Spark cannot be started on {master}; it needs Java 17 or later and a master that can be reached: {first}"


def _load_program(_: int) -> None:
    """In a worker: load what its work needs, so that a worker that cannot is known at once."""
    importlib.import_module("adapter.maintenance.scan.executor")


def _short(scratch: str) -> str:
    """A path for sockets in a directory, which must not have more than a hundred octets, as long as we live."""
    fd = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    return f"/proc/{os.getpid()}/fd/{fd}"


def _home(scratch: str) -> str:
    """Spark as it is installed, by links: a cluster on this machine keeps what its workers leave in Spark's home."""
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
def _nothing_left_behind() -> Iterator[None]:
    """Spark forgets the Java process whose start was interrupted; that would wait for Spark for ever."""
    before = processes.descendants(os.getpid())
    try:
        yield
    except BaseException as error:
        if is_interrupted(error):
            processes.kill(processes.descendants(os.getpid()) - before)
        raise


@contextlib.contextmanager
def _own_interrupts() -> Iterator[None]:
    """On Ctrl-C Spark would ask the Java process something, perhaps in the middle of another answer."""
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
def _silence() -> Iterator[None]:
    """The Java process inherits standard error, and would greet the user on it; failures reach us as exceptions."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def _code_archive(scratch: str) -> str:
    """The program itself, for executors that do not see this machine's files."""
    path = os.path.join(scratch, "markpost.zip")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in _PACKAGES:
            for directory, _, files in os.walk(os.path.join(_CODE, package)):
                for name in files:
                    if name.endswith((".py", ".sql")):
                        whole = os.path.join(directory, name)
                        archive.write(whole, os.path.relpath(whole, _CODE))
    workspace.write_file(path, packed.getvalue())
    return path
