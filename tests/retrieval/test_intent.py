import pytest
from hypothesis import given, strategies as st

from retrieval.rewrite import core_intent, split_questions


@pytest.mark.parametrize(
    ("query", "intent"),
    [
        ("请问一下，向量数据库是什么？", "向量数据库"),
        ("你好，我想知道怎么重置密码", "重置密码"),
        ("麻烦你帮我查一下退款流程，谢谢！", "退款流程"),
        ("能不能介绍一下RRF融合", "RRF融合"),
        ("请简述林越峰的写作风格？", "林越峰的写作风格"),
        ("什么是BM25", "BM25"),
        ("如何计算侵权赔偿额？", "计算侵权赔偿额"),
        ("国企可以作为普通合伙人吗？", "国企可以作为普通合伙人"),
        ("王连是什么时候被封为平阳亭侯的？", "王连是被封为平阳亭侯的"),
        ("公益诉讼的案件类型有哪些？", "公益诉讼的案件类型"),
        ("约塞米蒂高速公路在哪里", "约塞米蒂高速公路"),
        ("Could you please tell me what the capital of France is?", "the capital of France is"),
        ("How do I reset my password?", "reset my password"),
        ("hi, I'd like to know about pgvector. thanks!", "pgvector"),
        ("What is the name of the day school", "the name of the day school"),
        ("In what year was it founded?", "year was it founded"),
        ("Is aspirin safe in pregnancy? Thanks", "aspirin safe in pregnancy"),
        ("Imperialism was what?", "Imperialism was"),
        ("How many points did they score?", "points did they score"),
        ("你好, how do I install redis?", "install redis"),
    ],
)
def test_courtesies_and_question_words_go(query, intent):
    assert core_intent(query) == intent


@pytest.mark.parametrize(
    "query",
    [
        "哪吒闹海",
        "北京呢绒厂",
        "麻烦制造者",
        "patients who are ill when treated",
        "what-if analysis",
        "his history",
        "Is-a hierarchy",
        "0-dimensional biomaterials show inductive properties",
    ],
)
def test_the_same_letters_in_other_words_stay(query):
    assert core_intent(query) == query


@pytest.mark.parametrize("name", ["《什么是数学》", "“怎么办”", "「谁是谁」"])
def test_quotations_stay_as_they_are(name):
    assert core_intent(f"请问{name}的作者是谁？") == f"{name}的作者"


@pytest.mark.parametrize("query", ["如何", "什么是", "What is?", "吗", "???", "谢谢"])
def test_a_query_of_nothing_else_stays(query):
    assert core_intent(query) == query


@given(st.text())
def test_the_intent_is_blank_only_where_the_query_is(query):
    assert bool(core_intent(query).strip()) == bool(query.strip())


@given(
    st.lists(
        st.sampled_from(["请问", "你好", "what", "is", "how many", "什么", "吗", "谢谢", "？", "?", " ", "《", "》"])
    )
)
def test_a_query_of_courtesies_alone_is_never_emptied(parts):
    query = "".join(parts)

    assert bool(core_intent(query).strip()) == bool(query.strip())


@pytest.mark.parametrize(
    ("query", "parts"),
    [
        ("向量数据库是什么？重排序怎么做？", ("向量数据库是什么？", "重排序怎么做？")),
        ("RRF是什么；HNSW怎么建索引", ("RRF是什么", "HNSW怎么建索引")),
        ("What is BM25? How does HNSW work?", ("What is BM25?", "How does HNSW work?")),
        ("公司法第几条规定了监事？\n劳动合同试用期多久？", ("公司法第几条规定了监事？", "劳动合同试用期多久？")),
    ],
)
def test_questions_that_share_no_topic_are_split(query, parts):
    assert split_questions(query) == parts


@pytest.mark.parametrize(
    "query",
    [
        "谁可以成为个体工商户？",
        "小孤岛大医生又名什么？、",
        "什么是反担保？反担保人应当承担什么责任？",  # one topic
        "合伙企业应该如何交税？怎么设立？",  # no subject
        "RRF是什么？它有什么缺点？",
        "What is BM25? Why is it good?",
        "What is BM25? And how does HNSW work?",
        "医院需要赔偿吗？（患者拖欠医药费怎么办？）",  # an aside
        "我延期交电费，电力公司要求违约金，这合法吗？燃气费怎么算？",  # a story
        "供电线路故障造成大范围的火灾和停电事故以后可以请求赔偿吗？谁来修路？",  # a long one
        "向量数据库；重排序",
        "什么是什么？谁是谁？",  # no topic
        "https://example.com/?page=1;size=2",
        "",
    ],
)
def test_other_queries_are_not_split(query):
    assert split_questions(query) == ()


@given(st.text(st.sampled_from("甲乙丙丁是什么怎谁吗？?;；\n ab")))
def test_parts_are_pieces_of_the_query_in_order(query):
    end = 0
    for part in split_questions(query):
        end = query.index(part, end) + len(part)
