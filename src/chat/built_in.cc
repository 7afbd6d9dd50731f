#include "chat/built_in.h"

namespace pith::chat {
namespace {

// tools/golden/make_chat_templates.py reads them from here.
constexpr BuiltIn kBuiltIn[] = {
    {"chatml", R"jinja(
{%- macro words(content) -%}
  {%- if content is none -%}
  {%- elif content is string -%}{{ content }}
  {%- else -%}
    {%- for part in content -%}
      {%- if part.type != 'text' -%}{{ raise_exception('chatml holds text only, not ' ~ part.type) }}{%- endif -%}
      {{ part.text }}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{%- for message in messages -%}
  {{ '<|im_start|>' + message.role + '\n' + words(message.content) + '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{ '<|im_start|>assistant\n' }}
{%- endif -%}
)jinja"},
    {"llama3", R"jinja(
{%- macro words(content) -%}
  {%- if content is none -%}
  {%- elif content is string -%}{{ content | trim }}
  {%- else -%}
    {%- for part in content -%}
      {%- if part.type != 'text' -%}{{ raise_exception('llama3 holds text only, not ' ~ part.type) }}{%- endif -%}
      {{ part.text | trim }}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{{ bos_token }}
{%- for message in messages -%}
  {{ '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + words(message.content) + '<|eot_id|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif -%}
)jinja"},
    {"mistral", R"jinja(
{%- macro words(content) -%}
  {%- if content is none -%}
  {%- elif content is string -%}{{ content | trim }}
  {%- else -%}
    {%- for part in content -%}
      {%- if part.type != 'text' -%}{{ raise_exception('mistral holds text only, not ' ~ part.type) }}{%- endif -%}
      {{ part.text | trim }}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{%- set state = namespace(opening='', turn='user') -%}
{{ bos_token }}
{%- for message in messages -%}
  {%- if message.role == 'system' and loop.first -%}
    {%- set state.opening = words(message.content) + '\n\n' -%}
  {%- elif message.role != state.turn -%}
    {{ raise_exception('mistral wants user and assistant in turns, user first; here is ' ~ message.role) }}
  {%- elif message.role == 'user' -%}
    {{ '[INST] ' + state.opening + words(message.content) + ' [/INST]' }}
    {%- set state.opening = '' -%}
    {%- set state.turn = 'assistant' -%}
  {%- else -%}
    {{ ' ' + words(message.content) + eos_token }}
    {%- set state.turn = 'user' -%}
  {%- endif -%}
{%- endfor -%}
)jinja"},
    {"gemma", R"jinja(
{%- macro words(content) -%}
  {%- if content is none -%}
  {%- elif content is string -%}{{ content | trim }}
  {%- else -%}
    {%- for part in content -%}
      {%- if part.type != 'text' -%}{{ raise_exception('gemma holds text only, not ' ~ part.type) }}{%- endif -%}
      {{ part.text | trim }}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{%- set state = namespace(opening='', turn='user') -%}
{{ bos_token }}
{%- for message in messages -%}
  {%- if message.role == 'system' and loop.first -%}
    {%- set state.opening = words(message.content) + '\n\n' -%}
  {%- elif message.role != state.turn -%}
    {{ raise_exception('gemma wants user and assistant in turns, user first; here is ' ~ message.role) }}
  {%- else -%}
    {%- set state.turn = 'assistant' if message.role == 'user' else 'user' -%}
    {{ '<start_of_turn>' + ('user' if message.role == 'user' else 'model') + '\n' + state.opening + words(message.content) + '<end_of_turn>\n' }}
    {%- set state.opening = '' -%}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{ '<start_of_turn>model\n' }}
{%- endif -%}
)jinja"},
};

}  // namespace

std::span<const BuiltIn> built_in_templates() { return kBuiltIn; }

}  // namespace pith::chat
