"""Changed versions of test programs in C."""

from cloister.feedback.experiments.programs import program

TEXT = """\
#include <assert.h>

int main(void)
{
    assert(add(1, 2) == 3);
    assert(strcmp(name(), "calc") == 0);
    CHECK(ready());
    return 0;
}
"""


def test_each_of_the_last_assertions_expects_another_text_number_or_the_opposite() -> None:
    found = program(TEXT, 3)

    assert found is not None
    assert [one.text for one in found.wrong] == [
        TEXT.replace("ready()", "!(ready())"),
        TEXT.replace('"calc"', '"calc~planted"'),
        TEXT.replace("== 3", "== 20"),
    ]
    assert [one.was for one in found.wrong][:1] == ["CHECK(ready());"]
    assert found.wrong[0].reached == TEXT.replace("    CHECK(ready());", "__builtin_trap();")


def test_crash_comes_before_the_last_statement() -> None:
    found = program(TEXT, 1)

    assert found is not None
    assert found.ended == TEXT.replace("    return 0;", "__builtin_trap();\n    return 0;")


def test_file_without_a_main_function_or_without_assertions_is_no_test_program() -> None:
    assert program("int add(int a, int b) { return a + b; }\n", 1) is None
    assert program("int main(void)\n{\n    return 0;\n}\n", 1) is None
