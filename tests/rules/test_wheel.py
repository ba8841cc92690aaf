"""The wheel: one name in a user's environment, beside whatever else is called ``service`` or ``index`` there."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.rules.test_bans import project_files

pytestmark = pytest.mark.slow

FOLDERS = ("service", "index", "tiering", "pipeline")
#: An application with packages of its own under the names of our folders.
_APPLICATION = """
import index, pipeline, service, tiering
from pathlib import Path
from tierlog import Message, Query, Store

assert [package.OWNER for package in (index, pipeline, service, tiering)] == ["application"] * 4

def keys_of(root: Path) -> list[bytes]:
    with Store.open(root) as store:
        store.append([Message("orders", b"paid", keys=["4711"])])
        answer = store.query(Query("orders", key="4711"))
        assert answer.coverage.complete
        return [bytes(message.record.body) for message in answer.messages]

if __name__ == "__main__":
    import sys
    import tierlog.pipeline.packing, tierlog.tiering
    assert keys_of(Path(sys.argv[1])) == [b"paid"]
    assert "site" in Path(tierlog.tiering.__file__).parts, tierlog.tiering.__file__
    print("both work")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    (found,) = folder.glob("tierlog-*.whl")
    return found


def test_the_wheel_holds_the_package_tierlog_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (points,) = (name for name in names if name.endswith(".dist-info/entry_points.txt"))
        entry_points = archive.read(points).decode()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"tierlog"}
    assert "tierlog/py.typed" in names
    ours = [
        path.relative_to(ROOT) for path in project_files() if path.relative_to(ROOT).parts[0] in ("tierlog", *FOLDERS)
    ]
    expected = {(path if path.parts[0] == "tierlog" else Path("tierlog", path)).as_posix() for path in ours}
    assert expected - {f"tierlog/{folder}" for folder in FOLDERS} <= names
    assert "tierlog = tierlog.service.main:main" in entry_points


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pip makes of the wheel, in a folder of its own."""
    folder = tmp_path_factory.mktemp("installed") / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture
def application(tmp_path: Path) -> Path:
    folder = tmp_path / "application"
    for name in FOLDERS:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text('OWNER = "application"\n')
    (folder / "main.py").write_text(_APPLICATION)
    return folder


@pytest.mark.parametrize("is_first", [True, False], ids=["application first", "tierlog first"])
def test_an_application_keeps_its_own_service_index_tiering_and_pipeline(
    site: Path, application: Path, tmp_path: Path, is_first: bool
) -> None:
    order = [application, site] if is_first else [site, application]
    # without the path of this checkout, which an editable install of it puts there
    start = "import runpy, sys; rest = [path for path in sys.path if path not in ('', sys.argv[3])]; "
    start += "sys.path[:] = sys.argv[1:3] + rest; sys.argv[:] = sys.argv[4:]; "
    start += "runpy.run_path(sys.argv[0], run_name='__main__')"
    arguments = [*map(str, order), str(ROOT), str(application / "main.py"), str(tmp_path / "store")]
    done = subprocess.run(
        [sys.executable, "-c", start, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "both work\n"), done.stderr


def test_a_type_checker_sees_the_types_of_the_installed_package(site: Path, application: Path) -> None:
    (application / "wrong.py").write_text("from tierlog import Query\nQuery(7)\nreveal_type(Query('t').limit)\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-incremental", "--follow-imports=silent", "wrong.py"],
        cwd=application, env={"PATH": "/usr/bin:/bin", "MYPYPATH": str(site)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert 'wrong.py:2: error: Argument 1 to "Query" has incompatible type "int"; expected "str"' in done.stdout
    assert 'wrong.py:3: note: Revealed type is "int"' in done.stdout.replace("builtins.int", "int")
