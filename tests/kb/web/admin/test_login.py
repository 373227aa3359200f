"""Failed logins are counted by name and address, for all processes, and forgotten after a while or by a superuser."""

from datetime import timedelta

import pytest
from axes.models import AccessAttempt
from django.test import Client
from django.urls import reverse

from kb.access.services.rate_limits import name_digest
from tests.factories import make_user

pytestmark = pytest.mark.django_db
PASSWORD = "correct horse"


@pytest.fixture
def user(db, settings):
    settings.LOGIN_ATTEMPTS = settings.AXES_FAILURE_LIMIT = 3
    return make_user("li")


def login(password, *, name="li", address="192.0.2.1", client=None, **headers):
    client = client or Client(REMOTE_ADDR=address)
    return client.post(reverse("admin:login"), {"username": name, "password": password}, headers=headers)


def fail(times=3, **where):
    return [login("wrong", **where).status_code for _ in range(times)]


def test_too_many_failures_lock_even_the_right_password_out(user):
    assert fail() == [200, 200, 429]

    answer = login(PASSWORD)

    assert answer.status_code == 429
    assert answer["Retry-After"] == "900"


@pytest.mark.parametrize(("language", "remedy"), [("en", "Try again in 15 minutes"), ("zh-hans", "locked-out")])
def test_the_page_says_what_to_do(user, language, remedy):
    fail()

    page = login("wrong", **{"accept-language": language}).content.decode()

    assert remedy in page


def test_another_address_and_another_name_stay_open(user):
    make_user("wang")
    fail()

    assert login(PASSWORD, address="192.0.2.2").status_code == 302
    assert login(PASSWORD, name="wang").status_code == 302


def test_the_count_is_in_the_database_where_every_process_sees_it(user):
    fail(2)

    assert AccessAttempt.objects.get().failures_since_start == 2


def test_a_login_that_works_forgets_the_failures_before_it(user):
    fail(2)
    login(PASSWORD)

    assert fail(2) == [200, 200]


def test_the_lock_ends_by_itself(user):
    fail()
    AccessAttempt.objects.update(attempt_time=AccessAttempt.objects.get().attempt_time - timedelta(minutes=16))

    assert login(PASSWORD).status_code == 302


def test_attempts_during_the_lock_do_not_prolong_it(user):
    fail()
    locked_at = AccessAttempt.objects.get().attempt_time

    login("wrong")

    assert AccessAttempt.objects.get().attempt_time == locked_at


def test_behind_a_proxy_the_address_is_the_client_s(user, settings):
    settings.TRUSTED_PROXIES = 1
    fail(**{"x-forwarded-for": "198.51.100.7"})

    assert login(PASSWORD, **{"x-forwarded-for": "198.51.100.7"}).status_code == 429
    assert login(PASSWORD, **{"x-forwarded-for": "198.51.100.8"}).status_code == 302


def test_without_a_proxy_nobody_chooses_an_address(user):
    for number in range(3):
        login("wrong", **{"x-forwarded-for": f"198.51.100.{number}"})

    assert login(PASSWORD, **{"x-forwarded-for": "198.51.100.9"}).status_code == 429


def test_a_superuser_unlocks_an_account(user):
    fail()
    chief = Client()
    chief.force_login(make_user(superuser=True))

    chief.post(reverse("admin:kb_user_changelist"), {"action": "unlock_logins", "_selected_action": [user.pk]})

    assert login(PASSWORD).status_code == 302


def test_who_is_no_superuser_unlocks_nothing(user):
    fail()
    other = Client()
    other.force_login(make_user())

    answer = other.post(reverse("admin:kb_user_changelist"), {"action": "unlock_logins", "_selected_action": [user.pk]})

    assert answer.status_code == 403
    assert login(PASSWORD).status_code == 429


def test_a_new_password_ends_the_other_sessions_and_keeps_this_one(user):
    here, elsewhere = Client(), Client()
    for each in (here, elsewhere):
        login(PASSWORD, client=each)
    fields = {"old_password": PASSWORD, "new_password1": "a longer horse", "new_password2": "a longer horse"}

    here.post(reverse("admin:password_change"), fields)

    assert here.get(reverse("admin:index")).status_code == 200
    assert elsewhere.get(reverse("admin:index")).status_code == 302
    assert elsewhere.get("/api/v1/knowledge-bases/").status_code == 401


def test_the_cookies_are_kept_from_scripts_and_other_sites(user, settings):
    settings.SESSION_COOKIE_SECURE = True
    cookie = login(PASSWORD).cookies["sessionid"]

    assert cookie["httponly"] is True
    assert cookie["samesite"] == "Lax"
    assert cookie["secure"] is True
    assert cookie["max-age"] == 7 * 86_400


@pytest.fixture
def hashed(monkeypatch):
    """The names whose passwords were looked at, or would have been."""
    from django.contrib.auth.backends import ModelBackend

    names, look = [], ModelBackend.authenticate

    def watched(self, request, username=None, password=None, **kwargs):
        names.append(username)
        return look(self, request, username=username, password=password, **kwargs)

    monkeypatch.setattr(ModelBackend, "authenticate", watched)
    return names


@pytest.fixture
def limit(settings):
    def change(**limits):
        settings.API_RATE_LIMITS = {**settings.API_RATE_LIMITS, **limits}

    return change


def test_many_names_from_one_address_are_refused_before_a_password_is_looked_at(user, limit, hashed):
    limit(login="5/hour")

    codes = [login("wrong", name=f"name{number}").status_code for number in range(15)]

    assert codes == [200] * 5 + [429] * 10
    assert len(hashed) == 5


def test_the_page_of_too_many_attempts_says_when_to_come_back(user, limit):
    limit(login="1/minute")
    login("wrong")

    answer = login(PASSWORD, **{"accept-language": "en"})

    assert 0 < int(answer["Retry-After"]) <= 60
    assert f"Try again in {answer['Retry-After']} second" in answer.content.decode()


def test_addresses_of_one_ipv6_network_are_one_client(user, limit):
    limit(login="5/hour")

    codes = [login("wrong", name=f"name{n}", address=f"2001:db8:1:2::{n}").status_code for n in range(1, 8)]

    assert codes == [200] * 5 + [429] * 2
    assert login(PASSWORD, address="2001:db8:1:3::1").status_code == 302


def test_failures_with_one_name_from_one_ipv6_network_lock_it_there(user):
    codes = [login("wrong", address=f"2001:db8:1:2::{number}").status_code for number in range(1, 8)]

    assert codes == [200, 200] + [429] * 5
    assert login(PASSWORD, address="2001:db8:1:3::1").status_code == 302


def test_one_name_from_many_addresses_is_slowed_and_its_owner_s_browser_is_not(user, limit, hashed):
    limit(login_name="4/hour")
    here = Client(REMOTE_ADDR="198.51.100.7")
    login(PASSWORD, client=here)
    hashed.clear()

    codes = [login("wrong", name=("li", "LI")[n % 2], address=f"192.0.2.{n}").status_code for n in range(10)]

    assert codes == [200] * 3 + [429] * 7  # one was spent above
    assert len(hashed) == 3
    assert login(PASSWORD, client=here).status_code == 302
    assert login(PASSWORD, address="198.51.100.8").status_code == 429
    assert login(PASSWORD, name="wang", address="192.0.2.1").status_code == 200


def test_one_address_that_is_locked_out_keeps_nobody_else_out(user, limit):
    limit(login_name="6/hour")
    codes = [login("wrong", address="192.0.2.1").status_code for _ in range(20)]
    assert codes[0] == 200
    assert codes[-1] == 429
    assert login(PASSWORD, address="198.51.100.8").status_code == 302


def test_where_nobody_is_locked_out_a_right_password_opens_after_any_number_of_wrong_ones(user, settings):
    settings.AXES_ENABLED, settings.AXES_FAILURE_LIMIT = False, 0
    codes = [login("wrong", address="192.0.2.1").status_code for _ in range(8)]
    assert codes == [200] * 8
    assert login(PASSWORD, address="192.0.2.1").status_code == 302


def test_a_browser_known_for_one_name_is_a_stranger_to_another(user, limit):
    make_user("wang")
    limit(login_name="2/hour")
    here = Client(REMOTE_ADDR="198.51.100.7")
    login(PASSWORD, name="wang", client=here)
    (cookie,) = [name for name in here.cookies if name.startswith("device_")]
    fail(2, address="192.0.2.1")
    here.cookies["device_" + name_digest("li")[:8]] = here.cookies[cookie].value

    assert login(PASSWORD, client=here).status_code == 429


def test_a_name_that_no_account_can_have_is_no_fault_of_the_server(user):
    assert login("wrong", name="x" * 30_000).status_code == 400
