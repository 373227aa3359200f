@pytest.mark.django_db(transaction=True)
def test_two_curators_at_once_make_one_query_and_one_judgment():
    kb = make_kb()
    me = principal(kb.owner)
    chunk = chunk_of(make_document(kb, "五天带薪年假"))
    together = Barrier(2, timeout=20)

    def click(grade):
        with closing(connection):
            together.wait()
            judge(me, eval_set_named(me, kb), QUERY, chunk, grade)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(click, (1, 2)))
    assert (EvalSet.objects.count(), EvalQuery.objects.count(), Judgment.objects.count()) == (1, 1, 1)
