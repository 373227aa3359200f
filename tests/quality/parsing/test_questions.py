"""Questions on the tables of the bed, asked at the defaults: the chunk found has the row and the header that says what it means."""

import pytest

from kb.access.models import Principal
from kb.content.services import knowledge_base_create
from kb.search.services.search import SearchRequest, search
from retrieval.embedders.hashing import HASHING_MODEL_ID
from tests.factories import make_user
from tests.newcomer import upload
from tests.quality.parsing.cases import cases
from tests.quality.parsing.readers import tables_of

# Of each question: the first cell of the row, the column, and what stands there.
QUESTIONS = {
    "zh": (
        ("TH-02 的质保期是多少个月？", "TH-02", "质保（月）", "36"),
        ("GW-03 的单价是多少元？", "GW-03", "单价（元）", "259"),
        ("型号 SN-10 是什么产品？", "SN-10", "名称", "室温传感器"),
        ("地暖集控面板 TH-05 卖多少钱？", "TH-05", "单价（元）", "1299"),
        ("错误代码 E05 是什么意思？", "E05", "含义", "通信超时"),
        ("屏幕显示 E09 应该怎么处理？", "E09", "处理办法", "测量供电线路，更换老化的导线"),
        ("出现 E02 温度过高怎么办？", "E02", "处理办法", "关闭阀门，等待温度回落后重启"),
        ("成都有几个服务网点？", "成都", "网点数", "7"),
        ("沈阳的平均上门时间是多久？", "沈阳", "平均上门时间", "7 小时"),
        ("上海有多少名工程师？", "上海", "工程师", "41"),
    ),
    "en": (
        ("How many months of warranty does TH-02 have?", "TH-02", "Warranty (months)", "36"),
        ("What is the price of the GW-03?", "GW-03", "Price (EUR)", "39"),
        ("What is SN-10?", "SN-10", "Name", "Room sensor"),
        ("How much is the floor heating panel TH-05?", "TH-05", "Price (EUR)", "189"),
        ("What does error code E05 mean?", "E05", "Meaning", "Timeout"),
        ("What should I do about E09?", "E09", "What to do", "Measure the supply and replace worn wires"),
        ("The thermostat says E02, what now?", "E02", "What to do", "Close the valve, restart once it has cooled"),
        ("How many service points are there in Lyon?", "Lyon", "Points", "7"),
        ("How many hours until an engineer arrives in Turin?", "Turin", "Hours to arrival", "7"),
        ("How many engineers work in Madrid?", "Madrid", "Engineers", "41"),
    ),
}

TAGS = {"article", "ruled", "unruled", "landscape", "notes"}
DOCUMENTS = [case for case in cases() if case.tags & TAGS]


def is_answered(text: str, first: str, column: str, value: str) -> bool:
    return any(
        column in table[0] and row[0] == first and row[table[0].index(column)] == value
        for table in tables_of(text)
        for row in table[1:]
    )


@pytest.mark.quality
@pytest.mark.django_db(transaction=True)
def test_nearly_all_are_answered_by_a_chunk_that_says_what_its_row_means(printed):
    owner = make_user()
    missed = []
    for language, questions in QUESTIONS.items():
        files = [file for _case, file in printed(case for case in DOCUMENTS if case.document.language == language)]
        kb = knowledge_base_create(owner=owner, name=language, language=language, embedding_model=HASHING_MODEL_ID)
        upload(kb, files)
        for question, *expected in questions:
            request = SearchRequest(query=question, knowledge_base_ids=[kb.pk], log=False)
            hits = search(Principal(owner), request).result.hits
            if not any(is_answered(hit.passage.text, *expected) for hit in hits):
                missed.append(question)
    assert len(missed) <= 1, missed
