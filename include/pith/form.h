#pragma once
// Answers held to a form: a JSON document of a schema, or calls of tools. A form is an automaton
// over bytes; before each draw it gives the allowed tokens (Sampler::set_mask), however the
// tokenizer cuts the text. GenerateOptions::form does so in generate() and Stepper.
//
// Schemas: type (object, array, string, integer, number, boolean, null, or a list of these),
// properties, required, additionalProperties, items, minItems, maxItems, minLength, maxLength,
// enum, const, anyOf, and $ref into the schema itself, also recursive. Documents have the
// properties in the schema's order, at most one space behind ':' and ',', and nothing else between
// values.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)  // the library exports all of this

namespace pith {

class Tokenizer;  // pith/tokenizer.h

/// The texts of a tokenizer's tokens, ordered for forms: made once (some 50 ms for 150,000 tokens)
/// and shared by all. Immutable.
class FormVocabulary {
 public:
  explicit FormVocabulary(const Tokenizer& tokenizer);
  ~FormVocabulary();
  FormVocabulary(const FormVocabulary&) = delete;
  FormVocabulary& operator=(const FormVocabulary&) = delete;

 private:
  friend class FormFollower;
  struct [[gnu::visibility("hidden")]] State;
  std::unique_ptr<const State> state_;
};

/// A tool that a model may call.
struct FormTool {
  std::string name;
  std::string parameters = {};  ///< a JSON schema; "" = any object
  bool strict = false;          ///< keywords that are not supported are refused, not left out
};

/// How an answer calls tools: {"name": NAME, "arguments": {...}} between two words.
struct FormCalls {
  std::string opens = "<tool_call>", closes = "</tool_call>";  ///< a line break goes between
  /// The answer begins inside of a call: the prompt ends with `opens` and a line break. Otherwise
  /// it is free text until `opens` comes.
  bool begun = false;
  bool many = true;  ///< after a call may come text and more calls
};

/// Immutable but for a cache of states; answers on any threads may share one.
class AnswerForm {
 public:
  /// Throws kCorrupt for text that is not JSON; kUnsupported, with the keyword and its place, for
  /// other keywords than those above; kInvalidArgument for a schema that no document satisfies, and
  /// past the limits: 64 KiB, 2000 values.
  static std::shared_ptr<const AnswerForm> json_schema(
      std::string_view schema, std::shared_ptr<const FormVocabulary> vocabulary);
  /// Any JSON object.
  static std::shared_ptr<const AnswerForm> json_object(
      std::shared_ptr<const FormVocabulary> vocabulary);
  /// Calls of `tools`.
  static std::shared_ptr<const AnswerForm> tool_calls(
      const std::vector<FormTool>& tools, const FormCalls& calls,
      std::shared_ptr<const FormVocabulary> vocabulary);
  ~AnswerForm();
  AnswerForm(const AnswerForm&) = delete;
  AnswerForm& operator=(const AnswerForm&) = delete;

  /// Host memory of the states and masks kept for the next answers, in bytes. Past 8 MiB they are
  /// made anew.
  size_t bytes_remembered() const;

 private:
  friend class FormFollower;
  struct [[gnu::visibility("hidden")]] State;
  explicit AnswerForm(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Where one answer is in its form.
class FormFollower {
 public:
  /// `ends`: tokens that may come once the form is complete.
  FormFollower(std::shared_ptr<const AnswerForm> form, std::vector<int32_t> ends);
  ~FormFollower();
  FormFollower(FormFollower&&) noexcept;
  FormFollower& operator=(FormFollower&&) noexcept;

  /// Bit `id % 32` of word `id / 32`: the token may come next. Empty: all may. Valid until push().
  std::span<const uint32_t> mask();
  /// A token has come. One that the mask does not have ends the form's rule over the answer.
  void push(int32_t token);
  /// Nothing more may come.
  bool complete() const;
  /// The answer may end here.
  bool may_end() const;

 private:
  struct [[gnu::visibility("hidden")]] State;
  std::unique_ptr<State> state_;
};

}  // namespace pith

#pragma GCC visibility pop
