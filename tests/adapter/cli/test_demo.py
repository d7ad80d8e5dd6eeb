"""The demo: one command serves sample mail; a second run keeps it."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from adapter.api import Store
from adapter.demo import readme_image
from adapter.demo import store as demo


def test_interrupted_first_start_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(demo, "send_sample_mail", interrupted)
        with pytest.raises(KeyboardInterrupt):
            demo.prepare(str(tmp_path))
    with Store.open(demo.prepare(str(tmp_path)).root) as store:
        assert len(store.mailbox(demo.ADA).messages()) == 4


#: Ids, times and digests, which differ each time.
_VARIES = re.compile(
    r"msg-\d{8}(T\d{6}Z-[0-9a-f]{20})?|\d{4}-\d\d-\d\dT[\d:]+Z|thr-[0-9a-f]+|<[0-9a-f]+\.\d+@|&lt;[0-9a-f]+\.\d+@"
)


def test_picture_in_the_readme_shows_the_current_format(tmp_path: Path) -> None:
    with Store.open(demo.prepare(str(tmp_path)).root) as store:
        drawn = readme_image.draw(store.mailbox(demo.ADA))
    kept = Path(readme_image.__file__).with_suffix(".svg").read_text()
    assert _VARIES.sub("*", drawn) == _VARIES.sub("*", kept), "draw it again: python -m adapter.demo.readme_image"
    ElementTree.fromstring(kept)
