" nd.vim - syntax of nd, the language of ndc.
if exists("b:current_syntax")
  finish
endif

syn keyword ndDeclaration axis let use fn model train plan cluster
syn keyword ndStatement output return repeat param as like
syn keyword ndPlan mesh shard pipeline zero over recompute compress
syn keyword ndPlan context microbatches
syn keyword ndOperator and or not
syn keyword ndConstant inf true false
syn keyword ndFunction sum mean max min argmax cumsum where index rename split
syn keyword ndFunction flatten stack concat shift roll top_k one_hot cast
syn keyword ndFunction stop_gradient dropout random_normal exp log sqrt rsqrt
syn keyword ndFunction tanh sigmoid erf sin cos abs minimum maximum
syn keyword ndType f32 f16 bf16 i32 i64 bool

syn match ndNumber "\<\d\+\(\.\d\+\)\?\([eE][+-]\?\d\+\)\?\>"
syn match ndNumber "\<\d\+\(\.\d\+\)\?\s*[KMGT]i\?B\>"
syn match ndName "\<1f1b\>"
syn match ndOperator "->"
syn match ndOperator "[~^*/%+<>=-]"
syn region ndString start=+"+ end=+"+ oneline
syn match ndComment "#.*$" contains=@Spell

hi def link ndDeclaration Structure
hi def link ndStatement Statement
hi def link ndPlan Keyword
hi def link ndOperator Operator
hi def link ndConstant Constant
hi def link ndFunction Function
hi def link ndType Type
hi def link ndNumber Number
hi def link ndName Normal
hi def link ndString String
hi def link ndComment Comment

let b:current_syntax = "nd"
