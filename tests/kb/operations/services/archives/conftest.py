import pytest


@pytest.fixture
def kb():
    """With everything that curators make."""
    from tests.kb.operations.services.archives.bases import curated_kb

    return curated_kb()


@pytest.fixture
def archive(tmp_path):
    """Exports a knowledge base into a file."""
    from kb.operations.services.archives.export import export_kb

    def export(kb, **options):
        path = tmp_path / "kb.zip"
        export_kb(kb, path, **options)
        return path

    return export
