// From calls to prompts: texts that are too long are refused before a template works for them.

#include "serve/preparer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "serve/gate.h"
#include "serve/refusal.h"
#include "serve/test_scheduler.h"

namespace pith::serve {
namespace {

/// Shows all, and refuses to where words are many.
constexpr const char* kWhole =
    "{% for m in messages %}{% if m['content'] | length > 9999 %}"
    "{{ raise_exception('it was rendered') }}{% endif %}{{ m['content'] | trim }}{% endfor %}";
constexpr const char* kLast = "{{ messages[-1]['content'] }}";

struct Asking {
  explicit Asking(const char* source)
      : preparer(engine(),
                 std::make_shared<ChatTemplate>(source, "t", engine()->model()->tokenizer()), {}) {}
  /// The tokens of the prompt, or the code, the field and the words of the refusal.
  std::string operator()(const std::vector<Json>& messages) const {
    try {
      const auto tasks = preparer.tasks(chat_call({{"messages", messages}}, {}), "");
      return fmt::format("{} tokens", tasks[0]->prompt.size());
    } catch (const Refusal& r) {
      return fmt::format("{} {}: {}", r.code, r.param, r.what());
    } catch (const Error& e) {
      return e.what();
    }
  }
  const Preparer preparer;
};

Json said(const char* role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

TEST(Preparer, RefusesByBytesBeforeATemplateWorks) {
  const Asking whole(kWhole);
  // Half of what no context holds, so two of them are too much and one is read.
  const size_t most = whole.preparer.context() * whole.preparer.tokenizer().longest_piece();
  const std::string half = "a" + std::string(most / 2, 'b');
  const std::string code = "context_length_exceeded messages: ";
  const auto refused = [&](const std::vector<Json>& messages) {
    const std::string answer = whole(messages);
    EXPECT_EQ(answer.find("rendered"), answer.npos) << answer;
    return answer.starts_with(code);
  };
  EXPECT_TRUE(refused({said("user", half), said("assistant", "c"), said("user", half)}));
  EXPECT_TRUE(refused({said("user", half), said("assistant", half)}));
  EXPECT_NE(whole({said("user", half)}).find("it was rendered"), std::string::npos);
}

TEST(Preparer, BytesThatATemplateLeavesOutDoNotCount) {
  const Asking whole(kWhole), last(kLast);
  const size_t most = whole.preparer.context() * whole.preparer.tokenizer().longest_piece();
  const std::string space(most + 1, ' '), words(most + 1, 'a');
  EXPECT_EQ(last({said("user", words), said("assistant", "b"), said("user", "word")}),
            last({said("user", "word")}));
  EXPECT_EQ(last({said("user", "word")}).find("tokens"), 2u);
  EXPECT_NE(whole({said("user", "a" + space + "b")}).find("context_length"), std::string::npos);
  EXPECT_NE(whole({said("user", "a" + space)}).find("it was rendered"), std::string::npos);
}

}  // namespace
}  // namespace pith::serve
