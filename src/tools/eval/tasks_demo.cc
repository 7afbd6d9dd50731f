// Tasks in the formats that the demo model was trained on, and KIVI's passkey. The answers of the
// trained formats end with a full stop or a line, so these tasks stop there.

#include <fmt/format.h>

#include <array>

#include "tools/eval/document.h"
#include "tools/eval/task_parts.h"

namespace pith {
namespace {

constexpr size_t kFactTokens = 16;  // a space, seven digits, a full stop, and some to spare

// The document's own length is about what is asked for, so shorten until it fits.
Sample make_from_document(const SampleRequest& request, bool conversation) {
  return largest_sample(request, 1, [&](size_t size) {
    Sample sample;
    sample.conversation = conversation, sample.max_tokens = kFactTokens;
    sample.stop = {".", "\n"};
    const auto document = make_document(
        64 * size, request.turns, (request.seed << 20) + request.number, request.count_tokens);
    sample.context = document.text;
    for (const HiddenFact& fact : document.facts)
      sample.turns.push_back({fact.question(), {fact.value}, {}});
    return sample;
  });
}

constexpr std::array<std::string_view, 20> kNames{
    "Aldo", "Bera", "Cato", "Dara", "Edin", "Fola", "Goran", "Hana", "Ivo",  "Jana",
    "Kato", "Lena", "Milo", "Nora", "Otto", "Pila", "Rosa",  "Sven", "Tara", "Vera"};

struct Relation {
  std::string_view statement, question;
};
constexpr std::array<Relation, 5> kRelations{
    Relation{"{} was born in the town of {}.", "In which town was {} born?"},
    Relation{"{} works as a {}.", "What does {} work as?"},
    Relation{"{} keeps a pet called {}.", "What is the pet of {} called?"},
    Relation{"{} likes to eat {}.", "What does {} like to eat?"},
    Relation{"{} lives in the house of {}.", "In whose house does {} live?"}};

std::string capital(Dice& dice) {
  std::string word(plain_word(dice));
  word[0] = static_cast<char>(word[0] - 'a' + 'A');
  return word;
}

// The document of number `index`, with one question to it and filler of about `size` sentences.
std::string qa_document(Dice& dice, size_t index, const std::string& name,
                        const std::string& filler, Turn& turn) {
  std::string facts;
  const size_t first = dice.below(kRelations.size()), asked = dice.below(3);
  for (size_t i = 0; i < 3; ++i) {
    const Relation& r = kRelations[(first + i) % kRelations.size()];
    const std::string value = capital(dice);
    facts += (i > 0 ? " " : "") + fmt::format(fmt::runtime(r.statement), name, value);
    if (i != asked) continue;
    turn.question =
        fmt::format("\nQuestion: {} Answer:", fmt::format(fmt::runtime(r.question), name));
    turn.references = {value};
  }
  return fmt::format("Document [{}](Title: {}) {} {}\n", index + 1, name, facts, filler);
}

}  // namespace

Sample make_facts(const SampleRequest& request) { return make_from_document(request, false); }
Sample make_multi_turn(const SampleRequest& request) { return make_from_document(request, true); }

Sample make_docqa(const SampleRequest& request) {
  constexpr size_t kDocuments = 10;
  return largest_sample(request, 1, [&](size_t size) {
    Dice dice = sample_dice("docqa", request);
    Sample sample;
    sample.max_tokens = 8, sample.stop = {".", "\n"}, sample.metric = Metric::kContainsAny;
    sample.context =
        "Write an answer for the given questions using only the provided documents.\n\n";
    std::set<std::string> used;
    for (size_t i = 0; i < kDocuments; ++i) {
      const std::string name =
          fresh(used, [&] { return std::string(dice.of(kNames)) + " " + capital(dice); });
      // The first line of a document of made-up prose says what the demo's needles are: left out.
      const std::string prose =
          make_document(48 + 8 * size, 0, (request.seed << 20) + request.number * 16 + i,
                        request.count_tokens)
              .text;
      const std::string filler = prose.substr(prose.find('\n') + 1);
      Turn turn;
      sample.context += qa_document(dice, i, name, filler, turn);
      // The document that is asked for wanders over the samples, as in lost in the middle.
      if (i == request.number % kDocuments) sample.turns = {turn};
    }
    return sample;
  });
}

Sample make_kv(const SampleRequest& request) {
  return largest_sample(request, 4, [&](size_t size) {
    Dice dice = sample_dice("kv", request);
    Sample sample;
    sample.max_tokens = kFactTokens, sample.stop = {"\n"};
    std::set<std::string> used;
    std::vector<Turn> pairs;
    std::string body;
    for (size_t i = 0; i < size; ++i) {
      const std::string key = fresh(used, [&] { return word_pair(dice); });
      const std::string value = digits(dice, 7);
      body += fmt::format("\"{}\": \"{}\",\n", key, value);
      pairs.push_back({fmt::format("Key: \"{}\"\nValue: \"", key), {value}, {}});
    }
    sample.context = "JSON data:\n{" + body + "}\n";
    sample.turns = {pairs[dice.below(pairs.size())]};
    return sample;
  });
}

Sample make_passkey(const SampleRequest& request) {
  return largest_sample(request, 1, [&](size_t size) {
    Dice dice = sample_dice("passkey", request);
    const std::string key = digits(dice, 5);
    const uint64_t depth = dice.below(1000);
    Sample sample;
    sample.max_tokens = 8;
    sample.context =
        "There is an important info hidden inside a lot of irrelevant text. Find it and memorize "
        "it. I will quiz you about the important information there.\n";
    for (size_t i = 0; i <= size; ++i) {
      if (i == depth * (size + 1) / 1000)
        sample.context +=
            fmt::format("The pass key is {0}. Remember it. {0} is the pass key.\n", key);
      if (i < size) sample.context += std::string(kNoise) + "\n";
    }
    sample.turns = {{"What is the pass key? The pass key is", {key}, {}}};
    return sample;
  });
}

}  // namespace pith
